package dev

import (
	"os"
	"syscall"
)

// supported says whether this system can run tasks.
func supported() error { return nil }

// tryLock takes the lock of an open file; it fails at once when another process has it.
func tryLock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

func askToEnd(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }

func unmount(point string) error { return syscall.Unmount(point, 0) }

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
