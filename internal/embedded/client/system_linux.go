package client

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipeFlags open a log pipe without waiting for its other end and without following a link, since the task owns the
// folder it is in.
const pipeFlags = unix.O_NONBLOCK | unix.O_NOFOLLOW

func makeFIFO(path string) error { return unix.Mkfifo(path, 0o600) }

// tryLock takes the lock of an open file, which the kernel lets go of when the process ends. It fails at once when
// another process has it.
func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// readNow reads what there is, without waiting.
func readNow(fd uintptr, buf []byte) (int, error) { return unix.Read(int(fd), buf) }

// ownSession keeps a process running when the engine and its terminal end.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// signalProcess sends a signal. A process that has ended is no error.
func signalProcess(pid int, sig syscall.Signal) error {
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

type kernel struct{ name, release, host string }

func askKernel() (kernel, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return kernel{}, err
	}
	return kernel{
		name:    unix.ByteSliceToString(uts.Sysname[:]),
		release: unix.ByteSliceToString(uts.Release[:]),
		host:    unix.ByteSliceToString(uts.Nodename[:]),
	}, nil
}

// disk is the room of a file system: bytes in all, for anyone, and not written to; file entries in all and free.
type disk struct{ size, avail, free, files, filesFree uint64 }

func askDisk(dir string) (disk, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return disk{}, err
	}
	block := uint64(fs.Bsize)
	return disk{fs.Blocks * block, fs.Bavail * block, fs.Bfree * block, fs.Files, fs.Ffree}, nil
}
