package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/atomicwriter"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// A tool may forget the parts of a card for a reading, and it may do so at the first after a restart of the plugin. What parts
// there are is kept on disk, so that the card is not offered over parts that tasks have: a part is forgotten only when readings
// in a row showed its card without it.

// A partMemory keeps the parts that one source lists, over restarts. It is not safe for concurrent use.
type partMemory struct {
	path    string
	kept    []byte // as it is on disk; nil when there is nothing
	trouble string // why it cannot be written, as told last
}

func openParts(dir string, source string) *partMemory {
	return &partMemory{path: filepath.Join(dir, "parts", url.PathEscape(source)+".json")}
}

// read gives the parts that an earlier run kept; none where there is no file. Beside an error there are none.
func (m *partMemory) read() ([]accel.Card, error) {
	body, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read known parts: %w", err)
	}
	m.kept = body
	var parts []accel.Card
	if err := json.Unmarshal(body, &parts); err != nil {
		return nil, fmt.Errorf("read known parts in %s: %w", m.path, err)
	}
	return slices.DeleteFunc(valid(parts), func(c accel.Card) bool { return c.Form != accel.Partition }), nil
}

// keep writes the parts down if they are others than before.
func (m *partMemory) keep(parts []accel.Card) error {
	if len(parts) == 0 && m.kept == nil {
		return nil
	}
	body, err := json.MarshalIndent(parts, "", "  ")
	if err != nil {
		return fmt.Errorf("encode known parts: %w", err)
	}
	if bytes.Equal(body, m.kept) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o755); err != nil {
		return fmt.Errorf("keep known parts: %w", err)
	}
	if err := atomicwriter.WriteFile(m.path, body, 0o600); err != nil {
		return fmt.Errorf("keep known parts: %w", err)
	}
	m.kept = body
	return nil
}

// recall gives every source the parts that it listed before the plugin was started. The caller holds mu, here and below.
func (p *Plugin) recall() {
	for _, s := range p.sources {
		s.memory = openParts(p.set.StateDir, s.Name())
		parts, err := s.memory.read()
		if err != nil {
			p.log.Warn("parts that were known before the start cannot be read, they are learned anew", "error", err)
		}
		s.tracker.remember(parts)
	}
}

// memorize keeps the parts of a source. It is not worth failing for: they are known until the next start.
func (p *Plugin) memorize(s *source) {
	if s.memory == nil {
		return
	}
	text := ""
	if err := s.memory.keep(s.tracker.parts()); err != nil {
		text = err.Error()
	}
	if text != "" && text != s.memory.trouble {
		p.log.Warn("parts of cards are not kept: after a restart a card may be offered over parts that its tool forgets", "error", text)
	}
	s.memory.trouble = text
}

// remember notes parts that an earlier run of the plugin knew. They stand in the way of their cards, and are not offered before
// a reading lists them.
func (t *tracker) remember(parts []accel.Card) {
	for _, c := range parts[:min(len(parts), mostKnown)] {
		t.known[c.UUID] = &tracked{card: c, remembered: true}
	}
}

// parts lists every known part by what it is, whatever its health, ordered by identity.
func (t *tracker) parts() []accel.Card {
	parts := []accel.Card{}
	for _, e := range t.known {
		if c := e.card; c.Form == accel.Partition {
			c.Health, c.Conflicts = accel.Health{}, nil
			parts = append(parts, c)
		}
	}
	slices.SortFunc(parts, func(a, b accel.Card) int { return strings.Compare(a.UUID, b.UUID) })
	return parts
}
