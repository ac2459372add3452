//go:build !linux

package dev

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// errOnlyLinux is the answer of dev: the driver and the embedded engine run tasks on Linux only.
var errOnlyLinux = fmt.Errorf("heteroflow dev runs tasks, which needs Linux; this is %s: run it on a Linux machine (WSL 2 is one), or \"heteroflow server\" here beside a Nomad", runtime.GOOS)

func supported() error { return errOnlyLinux }

func tryLock(*os.File) error { return errOnlyLinux }

func askToEnd(int) error { return errOnlyLinux }

func unmount(string) error { return errOnlyLinux }

func ownGroup() *syscall.SysProcAttr { return nil }
