//go:build unix

package meter

import (
	"errors"
	"os"
)

// syncDir makes a new name outlive a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
