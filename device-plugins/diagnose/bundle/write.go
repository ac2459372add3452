package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// Names of what is in a bundle.
const (
	indexName    = "bundle.json"
	readmeName   = "README.txt"
	findingsName = "findings.json"
	historyName  = "history.jsonl"
	filesFolder  = "files"
	callsFolder  = "calls"
)

// index is bundle.json.
type index struct {
	About
	Calls   []call            `json:"calls"`
	Looks   map[string]string `json:"looks"`
	Dropped int               `json:"dropped_calls,omitempty"`
	Machine hostfs.Snapshot   `json:"machine"`
}

// call is one call of a tool. Its output is in files of its own.
type call struct {
	Argv     []string          `json:"argv"`
	Status   *int              `json:"exit_status,omitempty"`
	Failure  vendorcli.Failure `json:"failure,omitempty"`
	Why      string            `json:"why,omitempty"`
	Duration string            `json:"duration"`
	Stdout   string            `json:"stdout,omitempty"` // name of the file; empty when nothing was printed
	Stderr   string            `json:"stderr,omitempty"`
}

// A packer writes one bundle.
type packer struct {
	*tar.Writer
	at time.Time
}

func (p packer) file(name string, body []byte) error {
	if err := p.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(body)), ModTime: p.at, Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if _, err := p.Write(body); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}

// Write packs the bundle as it is. Mask it first.
func (b Bundle) Write(w io.Writer) error {
	zipped := gzip.NewWriter(w)
	p := packer{tar.NewWriter(zipped), b.About.Made}
	if err := errors.Join(b.pack(p), p.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

func (b Bundle) pack(p packer) error {
	if err := p.file(readmeName, []byte(b.readme())); err != nil {
		return err
	}
	i := index{About: b.About, Looks: b.Calls.Looks, Dropped: b.Calls.Dropped, Machine: b.Snapshot}
	i.Format = Format
	bodies := map[string]string{}
	for n, c := range b.Calls.Calls {
		one := call{Argv: c.Argv, Failure: c.Failure, Why: c.Why, Duration: c.Took.Round(time.Millisecond).String()}
		if c.Failure == "" {
			one.Status = &c.ExitCode
		}
		name := fmt.Sprintf("%s/%04d", callsFolder, n+1)
		if c.Stdout != "" {
			one.Stdout = name + ".stdout"
			bodies[one.Stdout] = c.Stdout
		}
		if c.Stderr != "" {
			one.Stderr = name + ".stderr"
			bodies[one.Stderr] = c.Stderr
		}
		i.Calls = append(i.Calls, one)
	}
	for name, text := range b.Snapshot.Texts {
		bodies[path.Join(filesFolder, name)] = text
	}
	body, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", indexName, err)
	}
	if err := errors.Join(p.file(indexName, body), p.file(findingsName, b.Findings)); err != nil {
		return err
	}
	if len(b.History) > 0 {
		if err := p.file(historyName, b.History); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		if err := p.file(name, []byte(bodies[name])); err != nil {
			return err
		}
	}
	return nil
}
