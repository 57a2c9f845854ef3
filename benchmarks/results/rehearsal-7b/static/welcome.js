"use strict";
// The first page: it removes the token from the address. A page of this server asks for the next one, so the
// browser sends the cookie, also if a file has led to this page.
location.replace("/" + location.hash);
