// What a contraction kernel notes of its steps: when each began and ended on the kernel's clock, and what it multiplied.
// As the counts of cycles.h in the emulation only; on a card the notes stay zero.
#ifndef BTTLAB_STEPS_H
#define BTTLAB_STEPS_H

#include "cycles.h"

constexpr int MOST_STEPS = 24;  // of a pass

struct Note {
    int begin, end;  // cycles
    int words;       // multiplied and added by the engines
};

#if defined(__SYNTHESIS__)

static inline void clear_notes() {}
static inline Note note_of(int) { return {0, 0, 0}; }
struct Step {
    Step(int) {}
};

#else

static Note notes[MOST_STEPS];

static void clear_notes() {
    *spent_on = multiplied = 0;
    for (Note &note : notes) note = {0, 0, 0};
}
static inline Note note_of(int step) { return notes[step]; }

// The step that is done while this lives. Where both engines take one, the note is of that which ends last.
class Step {
    const int step;
    const long long begin, multiplied_before;

  public:
    Step(int step) : step(step), begin(*spent_on), multiplied_before(multiplied) {}
    ~Step() {
        Note &note = notes[step];
        if (*spent_on > note.end) note.begin = begin, note.end = *spent_on;
        note.words += multiplied - multiplied_before;
    }
};

#endif

#endif
