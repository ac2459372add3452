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

// MarkReserved notes in dir that the reservation was handed out at the given moment. Repeating it renews the moment.
func MarkReserved(dir string, r Reservation, at time.Time) error {
	variable, _, err := r.Env()
	if err != nil {
		return err
	}
	m := mark{At: at}
	for _, c := range r.Cards {
		m.Cards = append(m.Cards, c.UUID)
	}
	return writeFile(dir, markPath(dir, variable), m)
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

// TidyReserved removes the marks in dir that no longer say anything: reservations older than keep whose task never
// came. A mark from the future was written before the clock was set back; it is made one of now, so that its card is
// not held until the clock is there again. A mark that cannot be read stays.
func TidyReserved(dir string, now time.Time, keep time.Duration) error {
	var problems []error
	paths, err := filepath.Glob(filepath.Join(globEscape.Replace(dir), "*"+markSuffix))
	if err != nil {
		return fmt.Errorf("list reservations: %w", err)
	}
	for _, path := range paths {
		var m mark
		body, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(body, &m) != nil {
			continue // taken meanwhile, or for Reserved to report
		}
		switch age := now.Sub(m.At); {
		case age >= keep:
			err = os.Remove(path)
		case age < 0:
			m.At = now
			err = writeFile(dir, path, m)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("tidy reservation: %w", err))
		}
	}
	return errors.Join(problems...)
}

// globEscape has a folder's name taken as it is.
var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// Reserved is when each card was last handed out without having been leased since, by UUID. A mark that cannot be
// read is an error beside those that can, because its card may be in use.
func Reserved(dir string) (map[string]time.Time, error) {
	cards := map[string]time.Time{}
	err := ReadFiles(dir, markSuffix, func(_ string, body []byte) error {
		var m mark
		if err := json.Unmarshal(body, &m); err != nil {
			return err
		}
		for _, uuid := range m.Cards {
			if m.At.After(cards[uuid]) {
				cards[uuid] = m.At
			}
		}
		return nil
	})
	return cards, err
}
