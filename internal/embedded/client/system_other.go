//go:build !linux

package client

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// errOnlyLinux is the answer of every step that needs Linux: the node's side of the engine rests on FIFOs, sessions
// and /proc.
var errOnlyLinux = fmt.Errorf("the embedded engine runs tasks on Linux only, this is %s: run Nomad here instead", runtime.GOOS)

const pipeFlags = 0

func makeFIFO(string) error { return errOnlyLinux }

func tryLock(*os.File) error { return errOnlyLinux }

func readNow(uintptr, []byte) (int, error) { return 0, errOnlyLinux }

func ownSession() *syscall.SysProcAttr { return nil }

func signalProcess(int, syscall.Signal) error { return errOnlyLinux }

type kernel struct{ name, release, host string }

func askKernel() (kernel, error) { return kernel{}, errOnlyLinux }

type disk struct{ size, avail, free, files, filesFree uint64 }

func askDisk(string) (disk, error) { return disk{}, errOnlyLinux }
