// Package health is the history of what befell the cards of a node: bounded files of lines that the device plugin writes
// and the doctor reads. Judging cards does not belong here.
package health

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/heteroflow/heteroflow/internal/filelock"
)

// File is the name of the history in the plugin's state folder, of its newer half when it is long.
const File = "health.jsonl"

const (
	olderFile = "health.old.jsonl"
	lockFile  = "health.lock"
	mostBytes = 256 << 10 // of both halves
	mostText  = 500       // bytes of a reason: tools may say a lot
)

// A Kind says what a record is about.
type Kind string

// The kinds of records.
const (
	Unhealthy Kind = "unhealthy" // the card is not offered any more
	Healthy   Kind = "healthy"   // the card is offered again
	JobFault  Kind = "job_fault" // a program on the card made an error; the card stays
	CardFault Kind = "card_fault"
	Foreign   Kind = "foreign" // a process that was granted nothing uses the card
)

// Record is one thing that happened to one card.
type Record struct {
	At     time.Time `json:"at"`
	Kind   Kind      `json:"kind"`
	Vendor string    `json:"vendor"`
	Model  string    `json:"model"`
	Card   string    `json:"card"`             // UUID
	Index  *int      `json:"index,omitempty"`  // absent when not known
	Reason string    `json:"reason,omitempty"` // in the words of the plugin or the tool
}

// Append adds records to the history in dir, which is made when absent. Two processes may do so at once, as while a plugin
// is replaced by a newer one: the records of a call are one write to the end of the file, and none is lost. Of a history
// that has grown too long the older half goes.
func Append(dir string, records ...Record) error {
	if len(records) == 0 {
		return nil
	}
	var body []byte
	for _, r := range records {
		if len(r.Reason) > mostText {
			r.Reason = string(bytes.ToValidUTF8([]byte(r.Reason[:mostText]), nil)) + "…"
		}
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode health record: %w", err)
		}
		body = append(append(body, line...), '\n')
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of the health history: %w", err)
	}
	tooLong := rotate(dir) // a history that is too long is better than one with holes
	for {
		kept, err := write(dir, body)
		if err != nil {
			return fmt.Errorf("write health history: %w", err)
		}
		if kept {
			return tooLong
		}
	}
}

// rotate makes a file that is full the older half. Another process that has it open writes to the older half then, which is
// read too. The lock is for looking and renaming only, so that who comes second does not put a file that has just begun in
// place of the older half; who does not get it leaves the renaming to the one that has it.
func rotate(dir string) error {
	path := filepath.Join(dir, File)
	if !full(path) {
		return nil
	}
	lock, err := filelock.Try(filepath.Join(dir, lockFile))
	if err != nil {
		return fmt.Errorf("shorten health history: %w", err)
	}
	if lock == nil {
		return nil
	}
	if full(path) {
		err = os.Rename(path, filepath.Join(dir, olderFile))
	}
	if err = errors.Join(err, lock.Release()); err != nil {
		return fmt.Errorf("shorten health history: %w", err)
	}
	return nil
}

func full(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() >= mostBytes/2
}

// write adds the body to the file. It is not kept where the file became the older half, and went, between opening and writing.
func write(dir string, body []byte) (kept bool, err error) {
	f, err := os.OpenFile(filepath.Join(dir, File), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	last := []byte{'\n'}
	if info.Size() > 0 {
		if _, err := f.ReadAt(last, info.Size()-1); err != nil {
			return false, err
		}
	}
	if last[0] != '\n' { // somebody edited it, the disk was full, or another process is in the middle of its write
		body = append([]byte{'\n'}, body...)
	}
	if _, err := f.Write(body); err != nil {
		return false, err
	}
	if err := f.Sync(); err != nil { // what befell the card may take the machine with it
		return false, err
	}
	for _, name := range []string{File, olderFile} { // in the order in which a file has the names
		if named, err := os.Stat(filepath.Join(dir, name)); err == nil && os.SameFile(info, named) {
			return true, nil
		}
	}
	return false, nil
}

// Text is the history in dir as it is written, oldest first, without empty lines; nothing where there is none.
func Text(dir string) ([]byte, error) {
	path := filepath.Join(dir, File)
	for {
		before, _ := os.Stat(path) // a file that cannot be looked at cannot be read: that tells why
		newer, err := read(path)   // first: what a process wrote before it wrote to this one is in the older half by now
		if err != nil {
			return nil, err
		}
		older, err := read(filepath.Join(dir, olderFile))
		if err != nil {
			return nil, err
		}
		after, _ := os.Stat(path)
		if before == nil && after == nil || before != nil && after != nil && os.SameFile(before, after) {
			return append(older, newer...), nil
		} // else it became the older half meanwhile
	}
}

func read(path string) ([]byte, error) {
	body, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read health history: %w", err)
	}
	var whole []byte
	for line := range bytes.Lines(body) { // an empty one is left where a line was ended twice: see write
		if line = bytes.TrimSuffix(line, []byte{'\n'}); len(line) > 0 {
			whole = append(append(whole, line...), '\n')
		}
	}
	return whole, nil
}

// Read gives the history in dir, oldest first. There is none where the file is absent. Lines that are no record are left
// out: somebody may have edited the file.
func Read(dir string) ([]Record, error) {
	body, err := Text(dir)
	return parse(body), err
}

func parse(body []byte) []Record {
	var records []Record
	for line := range bytes.Lines(body) {
		var r Record
		if json.Unmarshal(line, &r) == nil && r.Card != "" && r.Kind != "" {
			records = append(records, r)
		}
	}
	return records
}
