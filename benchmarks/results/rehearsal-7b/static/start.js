"use strict";
arpo.app.start();
