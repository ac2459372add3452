// Package health is the history of what befell the cards of a node: a bounded file of lines that the device plugin writes
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

	"github.com/moby/sys/atomicwriter"
)

// File is the name of the history in the plugin's state folder.
const File = "health.jsonl"

const (
	mostBytes = 256 << 10 // of the file, before its older half goes
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

// Append adds records to the history in dir, which is made when absent. Of a history that has grown too long the newer
// half is kept.
func Append(dir string, records ...Record) error {
	if len(records) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of the health history: %w", err)
	}
	path := filepath.Join(dir, File)
	body, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read health history: %w", err)
	}
	if len(body) > 0 && body[len(body)-1] != '\n' { // somebody edited it
		body = append(body, '\n')
	}
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
	if len(body) > mostBytes {
		body = body[len(body)-mostBytes/2:]
		body = body[bytes.IndexByte(body, '\n')+1:]
	}
	// Written whole: changes are rare, and a reader or a crash never meets half a record.
	if err := atomicwriter.WriteFile(path, body, 0o644); err != nil {
		return fmt.Errorf("write health history: %w", err)
	}
	return nil
}

// Read gives the history in dir, oldest first. There is none where the file is absent. Lines that are no record are left
// out: somebody may have edited the file.
func Read(dir string) ([]Record, error) {
	body, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read health history: %w", err)
	}
	return parse(body), nil
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
