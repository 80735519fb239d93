from horsies_django import HorsiesTask

make_report: HorsiesTask[[int], int]
