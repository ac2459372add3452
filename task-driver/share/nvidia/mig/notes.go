package mig

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// note is what is remembered of one share.
type note struct {
	Boot    string `json:"boot,omitempty"`
	Card    string `json:"card"`
	Profile int    `json:"profile"`
	Name    string `json:"name"` // of the profile
	Start   int    `json:"start"`
	Size    int    `json:"size"`
	GI      *int   `json:"gi,omitempty"`   // nil until the tool has told it
	UUID    string `json:"uuid,omitempty"` // of the MIG device; empty until it is known

	// What was asked for: a share of other sizes is made anew.
	MemoryMiB  uint64 `json:"memory_mib"`
	ComputePct int    `json:"compute_pct,omitempty"`
	TaskID     string `json:"task_id,omitempty"`
}

// names tells whether the note is of this instance.
func (n note) names(i instance) bool {
	return i.profile == n.Profile && i.start == n.Start && i.size == n.Size && (n.GI == nil || *n.GI == i.id)
}

// serves tells whether what was made is what is asked for.
func (n note) serves(a share.Ask) bool {
	return n.Card == a.Card.UUID && n.MemoryMiB == a.MemoryMiB && n.ComputePct == a.ComputePct
}

// notes keeps every note in the state folder and below /run.
type notes struct {
	host       share.Host
	state, run share.Notes[note]
}

func newNotes(h share.Host) notes {
	sum := sha256.Sum256([]byte(h.Dir))
	run := h
	run.Dir = filepath.Join("/run/heteroflow", hex.EncodeToString(sum[:4])) // drivers with other state folders have other notes
	return notes{
		host: h, state: share.NotesOf[note](h, string(accel.NVIDIA), Name), run: share.NotesOf[note](run, string(accel.NVIDIA), Name),
	}
}

// boot names this boot of the machine; empty when that is not told.
func (n notes) boot() string {
	id, err := os.ReadFile(n.host.Path("/proc/sys/kernel/random/boot_id"))
	if err != nil {
		n.host.Logger().Debug("boot id not read", "error", err)
		return ""
	}
	return strings.TrimSpace(string(id))
}

func (n notes) put(id share.ID, value note) error {
	value.Boot = n.boot()
	if err := n.state.Put(id, value); err != nil {
		return fmt.Errorf("note what is about to be made: %w", err)
	}
	if err := n.run.Put(id, value); err != nil {
		n.host.Logger().Warn("second note of a GPU instance not written", "error", err)
	}
	return nil
}

func (n notes) drop(id share.ID) error { return errors.Join(n.run.Drop(id), n.state.Drop(id)) }

// all are the notes of this boot, and those of another, which name nothing any more.
func (n notes) all() (now, past map[share.ID]note, err error) {
	boot := n.boot()
	now, past = map[share.ID]note{}, map[share.ID]note{}
	second, secondErr := n.run.All()
	first, firstErr := n.state.All()
	for _, some := range []map[share.ID]note{second, first} {
		for id, one := range some {
			switch {
			case boot != "" && one.Boot != "" && one.Boot != boot:
				past[id] = one
			case now[id].GI == nil || one.GI != nil: // a crash between the two leaves one that knows more
				now[id] = one
			}
		}
	}
	for id := range now {
		delete(past, id)
	}
	return now, past, errors.Join(firstErr, secondErr)
}
