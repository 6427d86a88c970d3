// Package memory holds the program to its promise that memory does not grow with
// the files that it moves: it runs the real binary against a store that keeps
// next to nothing, and looks at the most that the process ever had.
package memory
