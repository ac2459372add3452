//go:build !cgo

package nvidia

import "errors"

// withoutNVML is the note of a build without cgo, which the library needs.
const withoutNVML = "NVML not built in: nvidia-smi is used"

// nvmlReport stands in for the library in a build without cgo.
func nvmlReport() (report, error) { return report{}, errNVMLAbsent }

var errNVMLAbsent = errors.New(withoutNVML)
