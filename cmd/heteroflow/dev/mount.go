package dev

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// unmountBelow takes away the mounts below a folder, innermost first. A Nomad agent leaves those of its tasks'
// secrets, since tasks may outlive it.
func unmountBelow(dir string) error {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	defer file.Close()
	var points []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if point := mountPoint(lines.Text()); strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	errs := []error{lines.Err()}
	for i := len(points) - 1; i >= 0; i-- {
		if err := unmount(points[i]); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}

// mountPoint is the fifth field of a line of mountinfo, in which blanks are written as octal numbers.
func mountPoint(line string) string {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return ""
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
}
