//go:build unix && !linux

package postgres

import "syscall"

// dieWithParent has no counterpart outside Linux: a killed test leaves its server behind.
func dieWithParent(*syscall.SysProcAttr) {}
