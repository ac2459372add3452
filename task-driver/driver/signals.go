package driver

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

// signalNumber reads a signal by name, with or without SIG, or by number.
func signalNumber(name string) (syscall.Signal, error) {
	upper := strings.ToUpper(strings.TrimSpace(name))
	if n, err := strconv.Atoi(upper); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	if n := signalByName(upper); n != 0 {
		return n, nil
	}
	return 0, fmt.Errorf("signal %q is not known: write a name such as SIGTERM, SIGHUP or SIGUSR1", name)
}
