// Package grant holds what the task driver must know about the accelerators of a task: the reservation that the
// device plugin hands over in the device environment, and the grant that the placement service signs into the
// task's config. Deciding, placing and setting up a share do not belong here.
package grant

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// EnvPrefix begins the name of every variable that carries a Reservation. The rest of the name is derived from
// the instance ids, so that two device blocks of one brand in one task never overwrite each other.
const EnvPrefix = "HETEROFLOW_RESERVED_"

// Reservation is what the device plugin says about the instances of one device block. It travels in the device
// environment, which neither the job's env nor a template can change for the driver.
type Reservation struct {
	Version   int          `json:"v"` // 1
	Vendor    accel.Vendor `json:"vendor"`
	Form      accel.Form   `json:"form"`
	Instances []string     `json:"instances"`          // Nomad instance ids, sorted
	UnitMiB   uint64       `json:"unit_mib,omitempty"` // memory of one instance; 0 when unknown
	Cards     []Card       `json:"cards"`              // the cards behind the instances, by index
}

// Card is one card of a Reservation.
type Card struct {
	UUID      string   `json:"uuid"`
	Model     string   `json:"model"`
	Index     int      `json:"index"`
	PCI       string   `json:"pci,omitempty"`
	MemoryMiB uint64   `json:"memory_mib,omitempty"` // total of the card; 0 when unknown
	Units     int      `json:"units"`                // instances of this card in the reservation
	Nodes     []string `json:"nodes,omitempty"`      // device nodes of the card on the host
}

// MemoryMiB is what the reservation grants on this card: its slices, or all of a whole card. 0 means unknown.
func (r Reservation) MemoryMiB(c Card) uint64 {
	if r.Form == accel.Whole {
		return c.MemoryMiB
	}
	return uint64(c.Units) * r.UnitMiB
}

// Env is the variable that carries the reservation: name and value.
func (r Reservation) Env() (name, value string, err error) {
	slices.Sort(r.Instances)
	r.Version = 1
	body, err := json.Marshal(r)
	if err != nil {
		return "", "", fmt.Errorf("encode reservation: %w", err)
	}
	sum := sha256.Sum256([]byte(strings.Join(r.Instances, ",")))
	return EnvPrefix + strings.ToUpper(hex.EncodeToString(sum[:4])), string(body), nil
}

// Reservations reads every reservation of a device environment, ordered by variable name. An empty result means
// that the task was given no card.
func Reservations(deviceEnv map[string]string) ([]Reservation, error) {
	var names []string
	for name := range deviceEnv {
		if strings.HasPrefix(name, EnvPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := make([]Reservation, 0, len(names))
	for _, name := range names {
		var r Reservation
		if err := json.Unmarshal([]byte(deviceEnv[name]), &r); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if r.Version != 1 {
			return nil, fmt.Errorf("read %s: version %d is not known to this driver: upgrade heteroflow-driver", name, r.Version)
		}
		out = append(out, r)
	}
	return out, nil
}
