package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Lease is the driver's node-local note that a running task uses cards. The device plugin reads the leases
// before it switches the form of a card, because Nomad never tells a device plugin when a use ends.
type Lease struct {
	TaskID  string    `json:"task_id"`
	AllocID string    `json:"alloc_id"`
	Cards   []string  `json:"cards"` // UUIDs
	Since   time.Time `json:"since"`
	// Forms is how each card was given, by UUID. Leases of older drivers have none.
	Forms map[string]accel.Form `json:"forms,omitempty"`
	// Maker names the process of the driver that wrote it. Leases of older drivers have none.
	Maker string `json:"maker,omitempty"`
}

const leaseSuffix = ".lease.json"

func leasePath(dir, taskID string) string {
	safe := strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '.'
	}, taskID)
	return filepath.Join(dir, safe+leaseSuffix)
}

// WriteLease records a lease in dir, which is made when absent. It is written to a temporary file, synced and
// renamed, so that a reader or a crash never meets half a lease. Writing the same lease again is harmless.
func WriteLease(dir string, l Lease) error {
	if l.TaskID == "" {
		return errors.New("write lease: it has no task id")
	}
	return writeFile(dir, leasePath(dir, l.TaskID), l)
}

// RemoveLease drops a task's lease. A lease that is not there is no error.
func RemoveLease(dir, taskID string) error {
	if err := os.Remove(leasePath(dir, taskID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove lease: %w", err)
	}
	return nil
}

// Leases reads every lease in dir. A folder that does not exist holds none. A file that cannot be read is
// reported as an error beside the leases that can, because a card with an unreadable lease may be in use.
func Leases(dir string) ([]Lease, error) {
	var leases []Lease
	err := ReadFiles(dir, leaseSuffix, func(_ string, body []byte) error {
		var l Lease
		if err := json.Unmarshal(body, &l); err != nil {
			return err
		}
		leases = append(leases, l)
		return nil
	})
	return leases, err
}
