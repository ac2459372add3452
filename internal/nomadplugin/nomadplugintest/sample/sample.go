//go:build unix

// Package sample is a device plugin and a task driver small enough to test hosts with: invented devices whose health a
// file switches, and tasks that are plain processes under a supervisor which outlives the driver. A test binary turns
// itself into one of them with Main. Nothing here is for use outside of tests.
package sample

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
)

// Environment that makes a test binary a plugin.
const (
	envKind = "HETEROFLOW_SAMPLE_PLUGIN"
	envName = "HETEROFLOW_SAMPLE_NAME"
)

// Main is called first in TestMain. In a process that was started as a plugin it serves and never returns.
func Main() {
	kind := os.Getenv(envKind)
	if kind == "" {
		// Built with the race detector, each process that a test starts would sleep for a second at its end.
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			panic(err)
		}
		return
	}
	log := nomadplugin.NewLogger(kind)
	info := nomadplugin.Info{Name: os.Getenv(envName), Version: "0.1.0"}
	switch kind {
	case "device":
		nomadplugin.ServeDevice(&Device{info: info, log: log}, log)
	case "driver":
		nomadplugin.ServeDriver(NewDriver(info, log), log)
	case "supervisor":
		if err := supervise(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "ending":
		serveEnding(info)
	default:
		fmt.Fprintf(os.Stderr, "unknown sample plugin %q\n", kind)
		os.Exit(2)
	}
	os.Exit(0)
}

// Install writes a plugin binary of a kind into dir and returns its path: "device", "driver", or "ending", a device
// plugin that ends its fingerprint stream after the first list, which no plugin should do. It is a script that
// becomes the running test binary.
func Install(t *testing.T, dir, kind, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=%s %s=%s exec '%s' \"$@\"\n", envKind, kind, envName, name, self)
	path := filepath.Join(dir, name)
	// A process forked while the file is open for writing would keep it from being started for a moment.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
