def check_gnome_favorite_apps(apps_str):
    return eval(apps_str)
