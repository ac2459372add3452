package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A mark says that a reservation was handed out and no driver has taken it over yet. Nomad tells a device plugin of
// the beginning of a use only, and a task's lease comes a moment later: the mark covers the moment. The device plugin
// writes it, the driver removes it once the lease stands.

const markSuffix = ".reserved.json"

type mark struct {
	Cards []string  `json:"cards"`
	At    time.Time `json:"at"`
}

func markPath(dir, variable string) string { return filepath.Join(dir, variable+markSuffix) }

// Marks are the marks in one folder as one process of the device plugin sees them: how old each is. The age is not taken from
// the clock, which may be set while a task starts, but measured since the process made the mark, or saw it first where another
// made it, as before a restart. Not safe for concurrent use.
type Marks struct {
	dir     string
	elapsed func() time.Duration
	seen    map[string]sighting // by name of the file
}

// sighting is since when a mark is known. Another moment in it tells that it was renewed.
type sighting struct {
	at    time.Time
	since time.Duration
}

// NewMarks are the marks in dir, which need not exist. What elapsed gives are times since any one moment, and never goes
// back. Nothing is read before the first call.
func NewMarks(dir string, elapsed func() time.Duration) *Marks {
	return &Marks{dir: dir, elapsed: elapsed, seen: map[string]sighting{}}
}

// Add notes that the reservation was handed out now, a moment that the file tells to people. Repeating it begins its age anew.
func (m *Marks) Add(r Reservation, now time.Time) error {
	variable, _, err := r.Env()
	if err != nil {
		return err
	}
	added := mark{At: now}
	for _, c := range r.Cards {
		added.Cards = append(added.Cards, c.UUID)
	}
	if err := writeFile(m.dir, markPath(m.dir, variable), added); err != nil {
		return err
	}
	m.seen[variable] = sighting{now, m.elapsed()}
	return nil
}

// Fresh are the cards, by UUID, that were handed out less than keep ago without having been leased since. A mark that cannot
// be read is an error beside those that can, because its card may be in use.
func (m *Marks) Fresh(keep time.Duration) (map[string]bool, error) {
	cards := map[string]bool{}
	marks, err := m.look()
	for variable, found := range marks {
		if m.elapsed()-m.seen[variable].since < keep {
			for _, uuid := range found.Cards {
				cards[uuid] = true
			}
		}
	}
	return cards, err
}

// Tidy removes the marks that are no longer fresh: of reservations whose task never came. One that cannot be read stays, for
// Fresh to report.
func (m *Marks) Tidy(keep time.Duration) error {
	var problems []error
	marks, _ := m.look()
	for variable := range marks {
		if m.elapsed()-m.seen[variable].since < keep {
			continue
		}
		if err := os.Remove(markPath(m.dir, variable)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("tidy reservation: %w", err))
		}
	}
	return errors.Join(problems...)
}

// look reads the marks that there are and notes since when, by variable.
func (m *Marks) look() (map[string]mark, error) {
	marks := map[string]mark{}
	err := ReadFiles(m.dir, markSuffix, func(variable string, body []byte) error {
		var found mark
		if err := json.Unmarshal(body, &found); err != nil {
			return err
		}
		marks[variable] = found
		if s, known := m.seen[variable]; !known || !s.at.Equal(found.At) {
			m.seen[variable] = sighting{found.At, m.elapsed()}
		}
		return nil
	})
	maps.DeleteFunc(m.seen, func(variable string, _ sighting) bool {
		_, there := marks[variable]
		return !there
	})
	return marks, err
}

// TakeReserved removes the marks of the reservations in a device environment: their cards are leased now.
func TakeReserved(dir string, deviceEnv map[string]string) error {
	var problems []error
	for variable := range deviceEnv {
		if !strings.HasPrefix(variable, EnvPrefix) {
			continue
		}
		if err := os.Remove(markPath(dir, variable)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("take over reservation: %w", err))
		}
	}
	return errors.Join(problems...)
}
