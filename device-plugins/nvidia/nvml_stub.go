//go:build !cgo

package nvidia

import "errors"

// nvmlReport stands in for the library in a build without cgo.
func nvmlReport() (report, error) { return report{}, errNVMLAbsent }

var errNVMLAbsent = errors.New("not built with cgo: nvidia-smi is used in place of NVML")
