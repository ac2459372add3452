package brand

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/atomicwriter"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// Namesakes remembers which makers' numbers several cards of this machine give, so that a card keeps its name when its
// namesake goes or comes, also over a restart. A number that several gave names none of them for good, but for the one that
// had been named by it before the others came. It is safe for concurrent use.
type Namesakes struct {
	file    string // where shared is kept; empty keeps it in memory
	looking bool   // nothing may be written
	log     hclog.Logger

	mu     sync.Mutex
	opened bool
	alone  map[string]string // number → place of the one card that gives it, in this run
	shared map[string]string // number that several gave → place of the card that keeps it as its name; empty when none does
}

// maxNumbers bounds what is remembered: no machine has so many cards.
const maxNumbers = 4 * maxCards

// NewNamesakes are those of one brand. Nothing is read or written before the first reading.
func NewNamesakes(vendor accel.Vendor, cfg Config, log hclog.Logger) *Namesakes {
	n := &Namesakes{looking: cfg.Looking, log: log}
	if cfg.StateDir != "" {
		n.file = filepath.Join(cfg.StateDir, "repeated-numbers", string(vendor)+".json")
	}
	return n
}

// number is what sets a card apart by its maker's number; empty when it has none.
func (c Card) number() string {
	if c.ID == "" || c.Part == "" {
		return c.ID
	}
	return c.ID + " " + c.Part
}

// place is where a card is: on the bus, or where that is not known, in the tool's list. Empty when neither is known.
func (c Card) place() string {
	switch {
	case c.PCI != "":
		return c.PCI
	case c.Index != nil:
		return strconv.Itoa(*c.Index)
	}
	return ""
}

// Own tells of each card of a reading, in its order, whether it is named by its maker's number. Of a card only the number, the
// part and the place are looked at.
func (n *Namesakes) Own(cards []Card) []bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open()
	places := map[string]map[string]int{} // number → place → cards there
	for _, c := range cards {
		if number := c.number(); number != "" {
			if places[number] == nil {
				places[number] = map[string]int{}
			}
			places[number][c.place()]++
		}
	}
	n.learn(places)
	own := make([]bool, len(cards))
	for i, c := range cards {
		at, place := places[c.number()], c.place()
		if len(at) == 0 || at[place] > 1 {
			continue // no number, or one that does not even tell the cards of one place apart
		}
		keeper, shared := n.shared[c.number()]
		if !shared && len(at) > 1 {
			keeper, shared = n.alone[c.number()], true
		}
		own[i] = !shared || keeper != "" && keeper == place
	}
	return own
}

// learn notes the numbers that cards at several places give. Cards at one place are parts of a board or a line printed
// twice: that says nothing against the number.
func (n *Namesakes) learn(places map[string]map[string]int) {
	learned := false
	for number, at := range places {
		if _, known := n.shared[number]; known {
			continue
		}
		if len(at) > 1 && len(n.shared) < maxNumbers {
			n.shared[number], learned = n.alone[number], true
		}
		for place, cards := range at {
			if len(at) == 1 && cards == 1 && place != "" && len(n.alone) < maxNumbers {
				n.alone[number] = place
			}
		}
	}
	if learned {
		if err := n.keep(); err != nil {
			n.log.Warn("numbers that several cards give are not kept: their names may change when one is taken out", "error", err)
		}
	}
}

// open reads what an earlier run kept.
func (n *Namesakes) open() {
	if n.opened {
		return
	}
	n.opened, n.alone, n.shared = true, map[string]string{}, map[string]string{}
	if n.file == "" {
		return
	}
	body, err := os.ReadFile(n.file)
	if err == nil {
		kept := map[string]string{}
		if err = json.Unmarshal(body, &kept); err == nil {
			maps.Copy(n.shared, kept)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.Warn("numbers that several cards give cannot be read, they are learned anew", "file", n.file, "error", err)
	}
}

func (n *Namesakes) keep() error {
	if n.file == "" || n.looking {
		return nil
	}
	body, err := json.MarshalIndent(n.shared, "", "  ")
	if err != nil {
		return fmt.Errorf("encode repeated numbers: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(n.file), 0o755); err != nil {
		return fmt.Errorf("keep repeated numbers: %w", err)
	}
	if err := atomicwriter.WriteFile(n.file, body, 0o600); err != nil {
		return fmt.Errorf("keep repeated numbers: %w", err)
	}
	return nil
}
