//go:build !linux

package cgroup

import "os"

// readInto reads a file. Other systems have no control groups, only tests' folders.
func readInto(_ []byte, path string) ([]byte, error) { return os.ReadFile(path) }
