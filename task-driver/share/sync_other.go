//go:build !unix

package share

// syncDir does nothing: folders cannot be synced here, and the driver starts no tasks on this system.
func syncDir(string) error { return nil }
