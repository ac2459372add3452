package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// PauseImage is the image of the container that holds a group's network while its tasks come and go. It is made on the node, so
// that no registry is needed for it: its only file is a program that waits until it is killed.
const PauseImage = "heteroflow/pause:1"

// pausePrograms are the instructions of that program.
var pausePrograms = map[string]struct {
	machine uint16 // as ELF counts them
	code    []byte
}{
	// again: mov eax, 34 (pause); syscall; jmp again
	"amd64": {62, []byte{0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7}},
	// again: mov x0 … x4, 0; mov x8, 73 (ppoll of nothing, for ever); svc 0; b again
	"arm64": {183, words(0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, 0xd2800004, 0xd2800928, 0xd4000001, 0x17fffff9)},
}

func words(all ...uint32) (out []byte) {
	for _, w := range all {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return out
}

// pauseProgram is the program as an ELF file: a header, one segment that holds all, and the instructions.
func pauseProgram(arch string) ([]byte, error) {
	p, ok := pausePrograms[arch]
	if !ok {
		return nil, fmt.Errorf(`there is no image for the network of a group on %s: load one whose program waits for ever, and name it in docker { infra_image = "…" } of the plugin's config`, arch)
	}
	const header, base = 64 + 56, 0x400000
	size := uint64(header + len(p.code))
	var elf bytes.Buffer
	elf.WriteString("\x7fELF\x02\x01\x01" + string(make([]byte, 9)))
	for _, v := range []any{
		uint16(2), p.machine, uint32(1), uint64(base + header), uint64(64), uint64(0), uint32(0), [6]uint16{64, 56, 1},
		[2]uint32{1, 5}, [6]uint64{0, base, base, size, size, 4096},
	} {
		if err := binary.Write(&elf, binary.LittleEndian, v); err != nil {
			return nil, err
		}
	}
	elf.Write(p.code)
	return elf.Bytes(), nil
}

// MakePauseImage makes PauseImage where the daemon does not have it.
func (e *Engine) MakePauseImage(ctx context.Context) error {
	if _, err := e.ImageID(ctx, PauseImage); !errors.Is(err, ErrNotFound) {
		return err
	}
	program, err := pauseProgram(runtime.GOARCH)
	if err != nil {
		return err
	}
	var image bytes.Buffer
	archive := tar.NewWriter(&image)
	if err := archive.WriteHeader(&tar.Header{Name: "pause", Mode: 0o555, Size: int64(len(program))}); err != nil {
		return err
	}
	if _, err := archive.Write(program); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return e.Import(ctx, &image, PauseImage, []string{`ENTRYPOINT ["/pause"]`})
}
