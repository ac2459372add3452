//go:build !linux

package supervisor

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
)

// errOnlyLinux is the answer of every step that needs Linux: supervision rests on FIFOs, sessions and /proc.
var errOnlyLinux = fmt.Errorf("heteroflow's driver runs tasks on Linux nodes only, this one has %s: use another driver of Nomad here", runtime.GOOS)

const aliveFlags = 0

func ownSession() *syscall.SysProcAttr { return nil }

func closeOnExec(*os.File) {}

func makeFIFO(string) error { return errOnlyLinux }

func openWriter(string) (*os.File, error) { return nil, errOnlyLinux }

func openReader(string) (*os.File, error) { return nil, errOnlyLinux }

func sessionOf(int) int { return 0 }

// Signal always fails: no task was started here.
func (p Proc) Signal(syscall.Signal) error { return errOnlyLinux }

// SignalGroup always fails: no task was started here.
func (p Proc) SignalGroup(syscall.Signal) error { return errOnlyLinux }
