module tower.hangar/lab/pause

go 1.24
