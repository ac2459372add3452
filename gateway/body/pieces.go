package body

import (
	"encoding/json"
	"io"
)

// Pieces are a body in parts that follow each other. They are not changed, so that it can be sent again.
type Pieces [][]byte

// Len is the number of bytes.
func (p Pieces) Len() int {
	n := 0
	for _, piece := range p {
		n += len(piece)
	}
	return n
}

// Reader reads the body from its beginning.
func (p Pieces) Reader() io.Reader { return &piecesReader{rest: p} }

type piecesReader struct {
	rest Pieces
	at   int // in the first of them
}

func (r *piecesReader) Read(into []byte) (int, error) {
	for len(r.rest) > 0 && r.at == len(r.rest[0]) {
		r.rest, r.at = r.rest[1:], 0
	}
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(into, r.rest[0][r.at:])
	r.at += n
	return n, nil
}

// WriteTo writes what is left, each piece as it lies.
func (r *piecesReader) WriteTo(w io.Writer) (int64, error) {
	sum := int64(0)
	for ; len(r.rest) > 0; r.rest, r.at = r.rest[1:], 0 {
		if r.at == len(r.rest[0]) {
			continue
		}
		n, err := w.Write(r.rest[0][r.at:])
		sum += int64(n)
		if r.at += n; err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// edit replaces a range of bytes.
type edit struct {
	at   Span
	with []byte
}

// apply adds the parts of what the edits, in their order, make of a body.
func apply(out Pieces, raw []byte, edits ...edit) Pieces {
	from := 0
	for _, e := range edits {
		out = append(out, raw[from:e.at.Start], e.with)
		from = e.at.End
	}
	return append(out, raw[from:])
}

// quote writes a JSON string as it would be written by hand: without escapes for signs that HTML knows.
func quote(text string) []byte {
	plainText := true
	for i := range len(text) {
		if c := text[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
			plainText = false
			break
		}
	}
	if plainText {
		return append(append(append(make([]byte, 0, len(text)+2), '"'), text...), '"')
	}
	raw, err := json.Marshal(text)
	if err != nil {
		panic("body: a string that cannot be encoded") // there is none: bad bytes are replaced
	}
	return raw
}
