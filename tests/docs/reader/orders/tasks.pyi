from horsies_django import HorsiesTask

send_welcome: HorsiesTask[[int], str]
