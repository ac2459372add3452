package share

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heteroflow/heteroflow/internal/grant"
)

// State is how far a share has come. A share without an entry is gone.
type State string

// The states of a share. Giving back never turns round: from Releasing and TimedOut a share can only go.
const (
	Issued    = State(grant.ShareIssued)    // the backend is being asked to make it
	Confirmed = State(grant.ShareConfirmed) // it is made
	Releasing = State(grant.ShareReleasing) // the backend is being asked to give it back
	TimedOut  = State(grant.ShareTimedOut)  // the backend was asked and has not confirmed in time; it is asked again until it does
)

// leaving reports whether a share is being given back.
func (s State) leaving() bool { return s == Releasing || s == TimedOut }

// Entry is what the ledger says of one share. The device plugin reads a part of it: see grant.ReadShare.
type Entry struct {
	Version int       `json:"v"` // 1
	Ask     Ask       `json:"ask"`
	Backend string    `json:"backend,omitempty"` // empty where there is nothing to make, as with Held
	State   State     `json:"state"`
	Since   time.Time `json:"since"`             // when it came into the state, or for TimedOut when its release was issued
	Maker   string    `json:"maker,omitempty"`   // the process of the driver that issued it, see Options
	Problem string    `json:"problem,omitempty"` // why the last try to give it back failed
}

// entryVersion is the version of the entries this driver writes.
const entryVersion = grant.ShareVersion

// UnreadableError tells entries of the ledger that cannot be read: what they hold is not known.
type UnreadableError struct {
	IDs []ID
	Err error
}

func (e *UnreadableError) Error() string { return e.Err.Error() }
func (e *UnreadableError) Unwrap() error { return e.Err }

// ledger is where entries are kept. Files are the one there is; tests put a schedule between it and the manager.
type ledger interface {
	put(e Entry) error
	drop(id ID) error
	// get is one entry; nil when there is none.
	get(id ID) (*Entry, error)
	// all are the entries by id; with an *UnreadableError beside those that can be read.
	all() (map[ID]Entry, error)
}

// remembered is a ledger that can also be asked for what it said a moment ago, by those who only watch: the watchers of all
// backends wake together, and would each read all of it.
type remembered struct {
	ledger
	mu   sync.Mutex
	at   time.Time
	last map[ID]Entry
	err  error
}

var _ ledger = (*remembered)(nil)

// rememberFor is how long an answer serves. What this process writes ends it at once; another process of the driver may have
// written meanwhile.
const rememberFor = 500 * time.Millisecond

func (r *remembered) put(e Entry) error {
	defer r.forget()
	return r.ledger.put(e)
}

func (r *remembered) drop(id ID) error {
	defer r.forget()
	return r.ledger.drop(id)
}

func (r *remembered) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = time.Time{}
}

// recent is what all said a moment ago. The map must not be changed.
func (r *remembered) recent() (map[ID]Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() || time.Since(r.at) >= rememberFor {
		r.last, r.err = r.ledger.all()
		r.at = time.Now()
	}
	return r.last, r.err
}

// files is the ledger in a folder: one file for each share, written before anybody is asked for anything, so that a kill or
// a loss of power at any point is found again.
type files struct{ dir string }

var _ ledger = files{}

func (f files) path(id ID) string {
	return filepath.Join(f.dir, strings.ReplaceAll(string(id), string(filepath.Separator), "_")+grant.ShareSuffix)
}

func (f files) put(e Entry) error {
	e.Version = entryVersion
	if err := writeDurable(f.path(e.Ask.ID), e); err != nil {
		return fmt.Errorf("note share in the ledger: %w", err)
	}
	return nil
}

func (f files) drop(id ID) error {
	if err := removeDurable(f.path(id)); err != nil {
		return fmt.Errorf("strike share off the ledger: %w", err)
	}
	return nil
}

func (f files) get(id ID) (*Entry, error) {
	body, err := os.ReadFile(f.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read share in the ledger: %w", err)
	}
	e, err := readEntry(id, body)
	if err != nil {
		return nil, &UnreadableError{IDs: []ID{id}, Err: fmt.Errorf("read %s: %w", f.path(id), err)}
	}
	return &e, nil
}

func (f files) all() (map[ID]Entry, error) {
	entries := map[ID]Entry{}
	var unreadable []ID
	err := grant.ReadFiles(f.dir, grant.ShareSuffix, func(name string, body []byte) error {
		e, err := readEntry(ID(name), body)
		if err != nil {
			unreadable = append(unreadable, ID(name))
			return err
		}
		entries[e.Ask.ID] = e
		return nil
	})
	switch {
	case len(unreadable) > 0:
		slices.Sort(unreadable)
		return entries, &UnreadableError{IDs: unreadable, Err: err}
	case err != nil:
		return nil, fmt.Errorf("read the ledger of shares: %w", err)
	}
	return entries, nil
}

// readEntry reads what put writes under this name.
func readEntry(id ID, body []byte) (Entry, error) {
	var e Entry
	if _, err := grant.ReadShare(string(id), body); err != nil {
		return Entry{}, err
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return Entry{}, err
	}
	return e, nil
}
