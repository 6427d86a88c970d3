module github.com/ckptsync/ckptsync

go 1.26
