//go:build linux && !race

package http1

import (
	"syscall"
	"unsafe"
)

// What is read and written here never waits, and is over sooner than the scheduler could be told of it: it would make
// ready to give the goroutine's place to others, and wake its watcher, which switches threads, for each call that comes
// after a moment of rest. So it is not told. For as long as such a call takes nothing else can stop the program to look
// after its memory, so no call moves more than atOnce.
const atOnce = 128 << 10

func readNow(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(min(len(p), atOnce)))
	return int(n), err
}

func writeNow(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(min(len(p), atOnce)))
	return int(n), err
}
