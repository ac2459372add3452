package docker

import (
	"bytes"
	"debug/elf"
	"io"
	"strings"
	"testing"
)

// That the program waits is seen on a real daemon, by the tests of groups' networks.
func TestPauseProgram(t *testing.T) {
	t.Parallel()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		body, err := pauseProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		file, err := elf.NewFile(bytes.NewReader(body))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if file.Type != elf.ET_EXEC || file.Machine != machine || len(file.Progs) != 1 {
			t.Fatalf("%s: %+v", arch, file.FileHeader)
		}
		segment := file.Progs[0]
		all, err := io.ReadAll(segment.Open())
		code := pausePrograms[arch].code
		if err != nil || segment.Type != elf.PT_LOAD || segment.Flags != elf.PF_R|elf.PF_X || !bytes.Equal(all[file.Entry-segment.Vaddr:], code) {
			t.Errorf("%s: %+v, %v", arch, segment.ProgHeader, err)
		}
	}
	if _, err := pauseProgram("riscv64"); err == nil || !strings.Contains(err.Error(), "infra_image") {
		t.Errorf("of a machine without a program: %v", err)
	}
}
