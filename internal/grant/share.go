package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// The driver keeps a ledger of the shares that it makes, one file for each in a folder of the node. It writes a file before it
// asks a maker's tool for anything, and removes it after the tool has taken everything back. What is here is the part of
// the files that the device plugin reads too: by it, it knows which parts of a card are the driver's.

const (
	// ShareSuffix ends the name of a file of the ledger; the id of the share stands before it.
	ShareSuffix = ".share.json"
	// ShareTemp begins the name of one that is being written. One that is found was left by a crash and says nothing.
	ShareTemp = ".new-"
	// ShareVersion is the version of the files that this code writes and reads.
	ShareVersion = 1
)

// ShareState is how far a share has come. A share without a file is gone.
type ShareState string

// The states of a share. In each of them something of it may be on its card.
const (
	ShareIssued    ShareState = "issued"
	ShareConfirmed ShareState = "confirmed"
	ShareReleasing ShareState = "releasing"
	ShareTimedOut  ShareState = "timed_out"
)

// Share is what everybody may know of a share in the ledger.
type Share struct {
	ID     string
	TaskID string
	Vendor accel.Vendor
	Card   string     // UUID
	Form   accel.Form // in which the card was offered
	State  ShareState
}

// ReadShare reads the file of the share of this id. The error says why it is not known what the share holds.
func ReadShare(id string, body []byte) (Share, error) {
	var file struct {
		Version int        `json:"v"`
		State   ShareState `json:"state"`
		Ask     struct {
			ID     string       `json:"id"`
			TaskID string       `json:"task_id"`
			Vendor accel.Vendor `json:"vendor"`
			Card   Card         `json:"card"`
			Form   accel.Form   `json:"form"`
		} `json:"ask"`
	}
	if err := json.Unmarshal(body, &file); err != nil {
		return Share{}, err
	}
	ask := file.Ask
	switch {
	case file.Version != ShareVersion:
		return Share{}, fmt.Errorf("version %d is not known here: drain the node before going back to an older version", file.Version)
	case ask.ID != id || id == "":
		return Share{}, fmt.Errorf("it is of share %q", ask.ID)
	case !slices.Contains([]ShareState{ShareIssued, ShareConfirmed, ShareReleasing, ShareTimedOut}, file.State):
		return Share{}, fmt.Errorf("state %q is not known", file.State)
	case ask.TaskID == "":
		return Share{}, errors.New("it names no task")
	}
	return Share{ID: id, TaskID: ask.TaskID, Vendor: ask.Vendor, Card: ask.Card.UUID, Form: ask.Form, State: file.State}, nil
}

// Shares reads the ledger in dir, by id. A folder that does not exist holds none. A file that cannot be read is an error
// beside those that can, because nobody knows what its share holds.
func Shares(dir string) (map[string]Share, error) {
	shares := map[string]Share{}
	err := ReadFiles(dir, ShareSuffix, func(id string, body []byte) error {
		s, err := ReadShare(id, body)
		if err == nil {
			shares[id] = s
		}
		return err
	})
	return shares, err
}
