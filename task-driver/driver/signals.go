package driver

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// signalNumber reads a signal by name, with or without SIG, or by number.
func signalNumber(name string) (unix.Signal, error) {
	upper := strings.ToUpper(strings.TrimSpace(name))
	if n, err := strconv.Atoi(upper); err == nil && n > 0 && n < 65 {
		return unix.Signal(n), nil
	}
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	if n := unix.SignalNum(upper); n != 0 {
		return n, nil
	}
	return 0, fmt.Errorf("signal %q is not known: write a name such as SIGTERM, SIGHUP or SIGUSR1", name)
}
