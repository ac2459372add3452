// Package bundle keeps what was read of a machine in one file that can be sent away and played again: every call of a
// tool and its answer, the kernel's files that were read, the findings and the history of the cards, with private details
// masked. What is read and found belongs to the detectors, what is private to package mask.
package bundle

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// Format is the version of the form of a bundle. A reader refuses one that it does not know.
const Format = 1

// Bundle is a recorded machine.
type Bundle struct {
	About    About
	Calls    vendorcli.Recording
	Snapshot hostfs.Snapshot
	Findings json.RawMessage // what the device plugin found there
	History  []byte          // health.jsonl of the plugin; empty when there is none
}

// About is what a bundle says of itself.
type About struct {
	Format  int               `json:"format"`
	Made    time.Time         `json:"made"`
	Version string            `json:"version"` // of the plugin
	System  string            `json:"system"`  // of its build, such as linux/amd64
	Kernel  string            `json:"kernel,omitempty"`
	Distro  string            `json:"distribution,omitempty"`
	Config  map[string]string `json:"config,omitempty"`
	// Masked is how many different private details of each kind were masked.
	Masked map[mask.Kind]int `json:"masked"`
	// Library is what cannot be played again; empty when nothing.
	Library string `json:"library,omitempty"`
	// Differs are the brands of which a replay finds something else than was found on the machine.
	Differs []string `json:"differs,omitempty"`
}

// Files are the recorded machine's files.
func (b Bundle) Files() hostfs.FS { return hostfs.Replay(b.Snapshot) }

// Tools runs the recorded machine's tools.
func (b Bundle) Tools() vendorcli.Runner { return vendorcli.Replay(b.Calls) }

// Versions tells kernel and distribution of a machine; empty where it does not say.
func Versions(files hostfs.FS) (kernel, distro string) {
	kernel, err := files.Text("proc/sys/kernel/osrelease")
	if err != nil {
		kernel = ""
	}
	distro, err = files.Brief(func(text string) string {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "PRETTY_NAME=") {
				return line
			}
		}
		return ""
	}, "etc/os-release")
	if err != nil {
		distro = ""
	}
	return kernel, strings.Trim(strings.TrimPrefix(distro, "PRETTY_NAME="), `"`)
}

// Learn has a masker learn from all texts of the bundle. Knowers are asked about what tools printed.
func (b Bundle) Learn(m *mask.Masker, knowers ...mask.Knower) {
	for _, c := range b.Calls.Calls {
		for _, text := range []string{c.Stdout, c.Stderr} {
			m.LearnFrom(text)
			for _, k := range knowers {
				m.Learn(k.Secrets(text)...)
			}
		}
	}
	for _, text := range b.Snapshot.Texts {
		m.LearnFrom(text)
	}
}

// Mask is the bundle with its private details masked. The findings are masked value by value; what mends something, and
// where its maker says so, is ours and stays.
func (b Bundle) Mask(m *mask.Masker) (Bundle, error) {
	out := Bundle{About: b.About, Snapshot: hostfs.NewSnapshot()}
	for _, c := range b.Calls.Calls {
		c.Argv, c.Why, c.Stdout, c.Stderr = texts(m, c.Argv), m.Text(c.Why), m.Text(c.Stdout), m.Text(c.Stderr)
		out.Calls.Calls = append(out.Calls.Calls, c)
	}
	out.Calls.Looks, out.Calls.Dropped = pairs(m, b.Calls.Looks), b.Calls.Dropped
	out.Snapshot.Texts, out.Snapshot.Links, out.Snapshot.Errors = pairs(m, b.Snapshot.Texts), pairs(m, b.Snapshot.Links), pairs(m, b.Snapshot.Errors)
	for name, names := range b.Snapshot.Folders {
		out.Snapshot.Folders[m.Text(name)] = texts(m, names)
	}
	for name, there := range b.Snapshot.Present {
		out.Snapshot.Present[m.Text(name)] = there
	}
	for name, may := range b.Snapshot.Usable {
		out.Snapshot.Usable[m.Text(name)] = may
	}
	out.About.Config = pairs(m, b.About.Config)
	out.History = []byte(m.Text(string(b.History)))
	var findings any
	if err := json.Unmarshal(b.Findings, &findings); err != nil {
		return Bundle{}, fmt.Errorf("read the findings: %w", err)
	}
	var err error
	if out.Findings, err = json.MarshalIndent(masked(m, findings), "", "  "); err != nil {
		return Bundle{}, fmt.Errorf("encode the findings: %w", err)
	}
	out.About.Masked = m.Counts()
	return out, nil
}

func texts(m *mask.Masker, list []string) []string {
	out := make([]string, len(list))
	for i, text := range list {
		out[i] = m.Text(text)
	}
	return out
}

func pairs(m *mask.Masker, list map[string]string) map[string]string {
	out := make(map[string]string, len(list))
	for name, text := range list {
		out[m.Text(name)] = m.Text(text)
	}
	return out
}

func masked(m *mask.Masker, value any) any {
	switch v := value.(type) {
	case string:
		return m.Text(v)
	case []any:
		for i := range v {
			v[i] = masked(m, v[i])
		}
	case map[string]any:
		for name := range v {
			if name != "do" && name != "see" {
				v[name] = masked(m, v[name])
			}
		}
	}
	return value
}

// readme is what the bundle says to a person who opens it.
func (b Bundle) readme() string {
	var s strings.Builder
	fmt.Fprintf(&s, `This is a diagnostic bundle of heteroflow-device %s, made %s on %s %s %s.

  findings.json   what the device plugin found, and what is missing
  calls/          what every tool printed; bundle.json has the arguments, exit status and time of each call
  files/          the files of the kernel that were read
  history.jsonl   what befell the cards

Play it again, on any machine: heteroflow doctor -replay FILE

Masked, each value by one pseudonym throughout this bundle:
`, b.About.Version, b.About.Made.UTC().Format(time.RFC3339), b.About.System, b.About.Distro, b.About.Kernel)
	for _, kind := range mask.Kinds() {
		fmt.Fprintf(&s, "  %-28s %d\n", kind, b.About.Masked[kind])
	}
	s.WriteString("\nNot masked: models, versions, places on the PCI bus, memory, load, names of programs of card makers.\nLook through it before you send it: a tool that we do not know may print what we do not look for.\n")
	if b.About.Library != "" {
		s.WriteString("\n" + b.About.Library + "\n")
	}
	if len(b.About.Differs) > 0 {
		s.WriteString("\nA replay finds something else than the machine for: " + strings.Join(b.About.Differs, ", ") + "\n")
	}
	return s.String()
}
