// Defaults of Thunderbird on the light desktop. A task's profile overrides them. Debian's Thunderbird reads every
// file in /etc/thunderbird/pref.

// No notices, questions, web pages or downloads at the start.
pref("datareporting.policy.dataSubmissionEnabled", false);
pref("extensions.getAddons.cache.enabled", false);
pref("extensions.update.enabled", false);
pref("mail.inappnotifications.enabled", false);
pref("mail.rights.version", 1);
pref("mail.shell.checkDefaultClient", false);
pref("mailnews.start_page.enabled", false);
pref("mailnews.start_page_override.mstone", "ignore");

// Without a network interface, Thunderbird is offline. Otherwise it shows an alert for every account.
pref("network.offline-mirrors-connectivity", true);
