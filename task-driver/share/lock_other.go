//go:build !unix

package share

import "os"

// tryLock locks nothing: the driver starts no tasks on this system.
func tryLock(*os.File) (bool, error) { return true, nil }
