package share

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
)

// Notes is what a backend must remember of its shares where the maker's tool keeps no names: one small value for each share,
// written whole and synced. Write a note before the tool is called for what is about to be made, and again with the number
// the tool gave; remove it after the thing is gone. It lives in the backend's folder and goes with it when the state folder
// is wiped: what then cannot be told for ours is foreign, so prefer names.
//
// T is a struct with JSON tags; later versions must be able to read it. Notes are not safe for concurrent use.
type Notes[T any] struct{ dir string }

// NotesOf are the notes of the backend of this brand and name.
func NotesOf[T any](h Host, vendor, name string) Notes[T] {
	return Notes[T]{dir: h.Path(h.Dir, vendor, name, "notes")}
}

const noteSuffix = ".note.json"

func (n Notes[T]) path(id ID) string {
	return filepath.Join(n.dir, strings.ReplaceAll(string(id), string(filepath.Separator), "_")+noteSuffix)
}

// Put keeps the note of a share, in place of an earlier one.
func (n Notes[T]) Put(id ID, value T) error { return writeDurable(n.path(id), value) }

// Drop removes the note of a share; none is no error.
func (n Notes[T]) Drop(id ID) error { return removeDurable(n.path(id)) }

// All are the notes by share. The error tells those that cannot be read beside the others.
func (n Notes[T]) All() (map[ID]T, error) {
	all := map[ID]T{}
	err := grant.ReadFiles(n.dir, noteSuffix, func(name string, body []byte) error {
		var value T
		if err := json.Unmarshal(body, &value); err != nil {
			return err
		}
		all[ID(name)] = value
		return nil
	})
	return all, err
}
