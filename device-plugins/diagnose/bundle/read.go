package bundle

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// What a bundle may hold. A real one of a node with 16 cards has some hundred files and a few MiB.
const (
	mostZipped  = 64 << 20  // bytes of the file
	mostBytes   = 128 << 20 // of everything in it
	mostEntries = 20_000
	mostName    = 512
)

// ErrRefused says that a file is no bundle, or one that is not to be trusted.
var ErrRefused = errors.New("the bundle is refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// Open reads a bundle from a file.
func Open(file string) (b Bundle, err error) {
	f, err := os.Open(file)
	if err != nil {
		return Bundle{}, fmt.Errorf("open the bundle: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return Read(f)
}

// Read reads a bundle. Nothing of it is written anywhere. The error is ErrRefused for what is no bundle, too large, or has
// anything but plain files of the known names in it.
func Read(r io.Reader) (Bundle, error) {
	zipped, err := gzip.NewReader(&limited{from: r, left: mostZipped, what: "packed"})
	if err != nil {
		return Bundle{}, refused("it is no .tar.gz file that heteroflow doctor wrote", err)
	}
	bodies, err := unpack(tar.NewReader(&limited{from: zipped, left: mostBytes, what: "unpacked"}))
	if err != nil {
		return Bundle{}, err
	}
	return assemble(bodies)
}

func refused(what string, err error) error {
	if errors.Is(err, ErrRefused) {
		return err
	}
	return refuse("%s: %s", what, err)
}

// limited fails where more comes than a bundle may have: an end would look like one that was cut off.
type limited struct {
	from io.Reader
	left int64
	what string
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, refuse("it is too large %s", l.what)
	}
	n, err := l.from.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

func unpack(archive *tar.Reader) (map[string][]byte, error) {
	bodies := map[string][]byte{}
	left := int64(mostBytes) // a file with holes is larger than what is packed of it
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return bodies, nil
		}
		if err != nil {
			return nil, refused("read it", err)
		}
		switch name := header.Name; {
		case len(bodies) >= mostEntries:
			return nil, refuse("it has more than %d files", mostEntries)
		case header.Typeflag != tar.TypeReg:
			return nil, refuse("%.200q is no plain file: links, folders and devices have no place in a bundle", name)
		case !known(name):
			return nil, refuse("%.200q is no name of a file of a bundle", name)
		case header.Size > left:
			return nil, refuse("%.200q is too large", name)
		case bodies[name] != nil:
			return nil, refuse("%.200q is there twice", name)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			return nil, refused("read it", err)
		}
		left -= int64(len(body))
		bodies[header.Name] = append([]byte{}, body...)
	}
}

// known tells the names that a bundle has. None leads out of it.
func known(name string) bool {
	if name == "" || len(name) > mostName || path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(name, "../") || strings.ContainsAny(name, "\\\x00") {
		return false
	}
	switch folder, _, inside := strings.Cut(name, "/"); {
	case inside:
		return folder == filesFolder || folder == callsFolder
	default:
		return name == indexName || name == readmeName || name == findingsName || name == historyName
	}
}

func assemble(bodies map[string][]byte) (Bundle, error) {
	var i index
	body, ok := bodies[indexName]
	if !ok {
		return Bundle{}, refuse("it has no %s: is it a bundle of heteroflow doctor?", indexName)
	}
	if err := json.Unmarshal(body, &i); err != nil {
		return Bundle{}, refuse("%s: %s", indexName, err)
	}
	if i.Format != Format {
		return Bundle{}, refuse("its form is %d and this program knows %d: use a newer heteroflow", i.Format, Format)
	}
	if !json.Valid(bodies[findingsName]) {
		return Bundle{}, refuse("%s is no JSON", findingsName)
	}
	b := Bundle{About: i.About, Findings: bodies[findingsName], History: bodies[historyName], Snapshot: i.Machine}
	b.Calls = vendorcli.Recording{Looks: i.Looks, Dropped: i.Dropped}
	for n, c := range i.Calls {
		if len(c.Argv) == 0 || c.Status == nil && c.Failure == "" {
			return Bundle{}, refuse("call %d says neither what was called nor what became of it", n+1)
		}
		made := vendorcli.Call{Argv: c.Argv, ExitCode: -1, Failure: c.Failure, Why: c.Why, Stdout: string(bodies[c.Stdout]), Stderr: string(bodies[c.Stderr])}
		if c.Status != nil {
			made.ExitCode = *c.Status
		}
		if took, err := time.ParseDuration(c.Duration); err == nil {
			made.Took = took
		}
		b.Calls.Calls = append(b.Calls.Calls, made)
	}
	filled(&b.Snapshot)
	for name, text := range bodies {
		if file, ok := strings.CutPrefix(name, filesFolder+"/"); ok {
			b.Snapshot.Texts[file] = string(text)
		}
	}
	return b, nil
}

// filled makes the parts that are absent empty ones.
func filled(s *hostfs.Snapshot) {
	whole := hostfs.NewSnapshot()
	whole.Texts = map[string]string{}
	for name, v := range s.Folders {
		whole.Folders[name] = v
	}
	for name, v := range s.Links {
		whole.Links[name] = v
	}
	for name, v := range s.Present {
		whole.Present[name] = v
	}
	for name, v := range s.Usable {
		whole.Usable[name] = v
	}
	for name, v := range s.Errors {
		whole.Errors[name] = v
	}
	*s = whole
}
