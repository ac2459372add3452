package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/moby/sys/atomicwriter"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// A formBook holds the forms chosen by intent, by card UUID, and keeps them in a file, so that a restart offers every
// card as before. It is not safe for concurrent use.
type formBook struct {
	path   string
	chosen map[string]accel.Form
}

// openForms reads the book in dir. A book that does not exist is empty.
func openForms(dir string) (*formBook, error) {
	b := &formBook{path: filepath.Join(dir, "forms.json"), chosen: map[string]accel.Form{}}
	body, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return b, fmt.Errorf("read chosen forms: %w", err)
	}
	if err := json.Unmarshal(body, &b.chosen); err != nil {
		b.chosen = map[string]accel.Form{}
		return b, fmt.Errorf("read chosen forms in %s: %w", b.path, err)
	}
	if b.chosen == nil { // the text null
		b.chosen = map[string]accel.Form{}
	}
	return b, nil
}

// choose sets the form of a card, on disk first. What another plugin has written there of other cards stays: while a
// plugin is replaced two of them may run.
func (b *formBook) choose(uuid string, form accel.Form) error {
	next := maps.Clone(b.chosen)
	if there, err := openForms(filepath.Dir(b.path)); err == nil { // else there is nothing to keep
		maps.Copy(next, there.chosen)
	}
	next[uuid] = form
	body, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("encode chosen forms: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(b.path), 0o755); err != nil {
		return fmt.Errorf("keep chosen form: %w: have state_dir writable for the agent", err)
	}
	if err := atomicwriter.WriteFile(b.path, body, 0o600); err != nil {
		return fmt.Errorf("keep chosen form: %w: have state_dir writable for the agent", err)
	}
	b.chosen[uuid] = form
	return nil
}

// offered is the form of a card now, and whether an intent may change it. What an administrator divided stays divided,
// whatever a rule says; a card in MIG mode without partitions is nothing else before the mode is switched off.
func (s settings) offered(c accel.Card, book *formBook) (accel.Form, string) {
	if c.Form == accel.Partition || c.Form == accel.Divided {
		return c.Form, accel.PolicyFixed
	}
	if fixed := s.fixedForm(c); fixed != "" {
		return fixed, accel.PolicyFixed
	}
	if c.Form == accel.MIG {
		return accel.Whole, accel.PolicyFixed
	}
	if chosen := book.chosen[c.UUID]; chosen == accel.Shared {
		return accel.Shared, accel.PolicyAuto
	}
	return accel.Whole, accel.PolicyAuto
}
