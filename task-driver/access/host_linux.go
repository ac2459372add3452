package access

import (
	"io/fs"
	"syscall"
)

// groupOf is the group a file belongs to; -1 when it cannot be told.
func groupOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Gid)
	}
	return -1
}
