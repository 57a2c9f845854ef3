window.ARPO_EXPORT = {};
