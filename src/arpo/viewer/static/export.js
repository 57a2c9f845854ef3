"use strict";
// An export replaces this file: {"/api/sources": …, …}, the answers of the server by path.
window.ARPO_EXPORT = null;
