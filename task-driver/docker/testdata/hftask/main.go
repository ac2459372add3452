// Command hftask is what test containers run: the words of the fake engine's scripts, for real. Nothing else uses it.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	word, rest := "sleep", []string{}
	if len(os.Args) > 1 {
		word, rest = os.Args[1], os.Args[2:]
	}
	switch word {
	case "echo":
		fmt.Println(strings.Join(rest, " "))
	case "warn":
		fmt.Fprintln(os.Stderr, strings.Join(rest, " "))
	case "exit":
		code, err := strconv.Atoi(strings.Join(rest, ""))
		if err != nil {
			code = 1
		}
		os.Exit(code)
	case "env":
		for _, pair := range os.Environ() {
			fmt.Println(pair)
		}
	case "cat":
		in := io.Reader(os.Stdin)
		if len(rest) > 0 {
			f, err := os.Open(rest[0])
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			in = f
		}
		if _, err := io.Copy(os.Stdout, in); err != nil {
			os.Exit(1)
		}
	case "flood":
		lines, err := strconv.Atoi(rest[0])
		if err != nil {
			os.Exit(1)
		}
		out := bufio.NewWriter(os.Stdout)
		for n := range lines {
			fmt.Fprintf(out, "line %07d %s\n", n, strings.Repeat("x", 100))
		}
		if err := out.Flush(); err != nil {
			os.Exit(1)
		}
	case "write":
		if err := os.WriteFile(rest[0], []byte(strings.Join(rest[1:], " ")), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "oom":
		var all [][]byte
		for {
			block := make([]byte, 8<<20)
			for i := range block {
				block[i] = 1
			}
			all = append(all, block)
		}
	default: // sleep, stubborn
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
		for s := range signals {
			if s == syscall.SIGTERM && word != "stubborn" {
				os.Exit(143)
			}
			fmt.Println("got", map[os.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1"}[s])
		}
	}
}
