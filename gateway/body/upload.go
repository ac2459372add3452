package body

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"unicode/utf8"
)

// ErrTooLarge is said of a body over its limit.
var ErrTooLarge = errors.New("body over its limit")

// maxMemory is what an upload keeps in memory; what comes after it is kept on disk.
const maxMemory = 1 << 20

// Upload is a form with files. It is passed on while it comes in, and kept beside, so that it can be sent once more
// from its beginning: up to 1 MiB in memory, the rest in a file that has no name. It is safe for concurrent use.
type Upload struct {
	dir   string
	limit int64

	mu    sync.Mutex
	src   io.Reader
	form  form
	mem   []byte
	file  *os.File
	named bool  // the file has its name still
	size  int64 // of what came
	ended error // nil while more may come; io.EOF after the end
	turn  int   // of the reader that may read
	chunk []byte
}

// NewUpload takes a form of multipart/form-data with its Content-Type. Files are kept in dir, which is the system's
// folder for such when empty. A body over limit ends with ErrTooLarge. Errors wrap ErrBad.
func NewUpload(src io.Reader, contentType, dir string, limit int64) (*Upload, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, fmt.Errorf("%w: this route takes multipart/form-data with a boundary, not %q", ErrBad, contentType)
	}
	u := &Upload{dir: dir, limit: limit, src: src, form: form{delim: []byte("\r\n--" + params["boundary"]), at: -2}}
	u.form.rest = append(u.form.rest, "\r\n"...) // the first delimiter may stand at the very beginning
	return u, nil
}

// Model reads on until the form's model is known. Errors wrap ErrBad or ErrTooLarge, or are those of reading.
func (u *Upload) Model() (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for !u.form.known {
		if err := u.more(); err == io.EOF {
			break
		} else if err != nil {
			return "", err
		}
	}
	if u.form.model == "" {
		return "", fmt.Errorf("%w: you must provide a model parameter", ErrBad)
	}
	return u.form.model, nil
}

// Grows is how many bytes the body grows by when it is sent with the model's name replaced.
func (u *Upload) Grows(model string) int64 {
	if model == "" {
		return 0
	}
	return int64(len(model) - (u.form.value.End - u.form.value.Start))
}

// more reads one piece. The lock is held.
func (u *Upload) more() error {
	if u.ended != nil {
		return u.ended
	}
	if u.chunk == nil {
		u.chunk = make([]byte, 32<<10)
	}
	n, err := u.src.Read(u.chunk)
	if keepErr := u.keep(u.chunk[:n]); keepErr != nil {
		err = keepErr
	}
	if err != nil {
		u.ended, u.chunk = err, nil
	}
	return err
}

func (u *Upload) keep(p []byte) error {
	if u.size+int64(len(p)) > u.limit {
		return ErrTooLarge
	}
	if err := u.form.read(p); err != nil {
		return err
	}
	u.size += int64(len(p))
	if room := min(len(p), maxMemory-len(u.mem)); room > 0 {
		u.mem = append(u.mem, p[:room]...)
		p = p[room:]
	}
	if len(p) == 0 {
		return nil
	}
	if u.file == nil {
		file, err := os.CreateTemp(u.dir, "heteroflow-upload-*")
		if err != nil {
			return fmt.Errorf("keep upload: %w", err)
		}
		u.file, u.named = file, os.Remove(file.Name()) != nil // not every system lets go of the name of an open file
	}
	if _, err := u.file.Write(p); err != nil {
		return fmt.Errorf("keep upload: %w", err)
	}
	return nil
}

// readAt reads what was kept, and reads on where nothing is. The lock is held.
func (u *Upload) readAt(p []byte, at int64) (int, error) {
	for at >= u.size {
		if err := u.more(); err != nil && at >= u.size { // the last piece may come together with the end
			return 0, err
		}
	}
	if at < int64(len(u.mem)) {
		return copy(p, u.mem[at:]), nil
	}
	n, err := u.file.ReadAt(p, at-int64(len(u.mem)))
	if n > 0 {
		return n, nil
	}
	return 0, err
}

// Err is what went wrong with what the client sent; nil when nothing did so far.
func (u *Upload) Err() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended == io.EOF {
		return nil
	}
	return u.ended
}

// Reader reads the body from its beginning, with the model's name replaced unless model is empty. A reader taken
// before reads no more.
func (u *Upload) Reader(model string) io.Reader {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn++
	r := &uploadReader{u: u, turn: u.turn, edit: edit{Span{-1, -1}, nil}}
	if model != "" {
		r.edit = edit{u.form.value, []byte(model)}
	}
	return r
}

// Close gives up what is kept.
func (u *Upload) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn++
	u.mem = nil
	if u.file == nil {
		return nil
	}
	err := u.file.Close()
	if u.named {
		err = errors.Join(err, os.Remove(u.file.Name()))
	}
	u.file = nil
	return err
}

type uploadReader struct {
	u    *Upload
	turn int
	at   int64 // in the body as it came
	edit edit
	with int // of the edit, what was read
}

func (r *uploadReader) Read(p []byte) (int, error) {
	r.u.mu.Lock()
	defer r.u.mu.Unlock()
	if r.turn != r.u.turn {
		return 0, os.ErrClosed
	}
	start := int64(r.edit.at.Start)
	if start >= 0 && r.at < start && int64(len(p)) > start-r.at {
		p = p[:start-r.at]
	}
	if r.at == start {
		if r.with < len(r.edit.with) {
			n := copy(p, r.edit.with[r.with:])
			r.with += n
			return n, nil
		}
		r.at = int64(r.edit.at.End)
	}
	n, err := r.u.readAt(p, r.at)
	r.at += int64(n)
	return n, err
}

// form finds the field "model" in a form that comes in pieces.
type form struct {
	delim []byte // with the line end before it
	rest  []byte // not looked at for good
	at    int    // place of rest in the body
	state formState
	known bool // the model was found
	model string
	value Span
}

type formState int

const (
	inPart formState = iota
	inHeader
	inModel
	atEnd
)

// The longest header of a part, and the longest name of a model.
const (
	maxPartHeader = 16 << 10
	maxModel      = 1 << 10
)

func (f *form) read(p []byte) error {
	f.rest = append(f.rest, p...)
	for {
		moved, err := f.step()
		if err != nil || !moved {
			return err
		}
	}
}

func (f *form) drop(n int) {
	f.rest = f.rest[:copy(f.rest, f.rest[n:])]
	f.at += n
}

// step goes to the next boundary or the end of the next header; it reports whether it found one.
func (f *form) step() (bool, error) {
	switch f.state {
	case inPart, inModel:
		i := bytes.Index(f.rest, f.delim)
		if f.state == inModel {
			if i > maxModel || i < 0 && len(f.rest) > maxModel+len(f.delim) {
				return false, fmt.Errorf("%w: model is over %d bytes", ErrBad, maxModel)
			}
			if i >= 0 {
				f.model, f.value, f.known = string(f.rest[:i]), Span{f.at, f.at + i}, true
				if !utf8.ValidString(f.model) {
					return false, fmt.Errorf("%w: model is not UTF-8", ErrBad)
				}
			}
		}
		if i < 0 {
			if f.state == inPart && len(f.rest) > len(f.delim) {
				f.drop(len(f.rest) - len(f.delim))
			}
			return false, nil
		}
		f.drop(i + len(f.delim))
		f.state = inHeader
		return true, nil
	case inHeader:
		if bytes.HasPrefix(f.rest, []byte("--")) {
			f.state = atEnd
			return true, nil
		}
		i := bytes.Index(f.rest, []byte("\r\n\r\n"))
		if i < 0 {
			if len(f.rest) > maxPartHeader {
				return false, fmt.Errorf("%w: the header of a part is over %d bytes", ErrBad, maxPartHeader)
			}
			return false, nil
		}
		f.state = inPart
		if partName(string(f.rest[:i])) == "model" {
			if f.known {
				return false, fmt.Errorf("%w: the field \"model\" is there twice", ErrBad)
			}
			f.state = inModel
		}
		// The line end before the part stays: an empty part ends with it.
		if f.state == inModel {
			f.drop(i + 4)
			if bytes.HasPrefix(f.rest, f.delim[2:]) {
				return false, fmt.Errorf("%w: you must provide a model parameter", ErrBad)
			}
		} else {
			f.drop(i + 2)
		}
		return true, nil
	case atEnd:
		f.drop(len(f.rest))
	}
	return false, nil
}

// partName is the name that the header of a part gives to its field.
func partName(header string) string {
	for line := range strings.SplitSeq(header, "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if ok && textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)) == "Content-Disposition" {
			if _, params, err := mime.ParseMediaType(value); err == nil {
				return params["name"]
			}
		}
	}
	return ""
}
