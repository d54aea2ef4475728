/* Packed sequences: one behind the other, without padding. */

/* Sequences of equal length are a batch, which every mixer takes. */
static gma_status pack_stack(stack *s, const int64_t *lengths, int64_t count) {
    int64_t rows = 0, longest = 0, equal = 1;
    for (int64_t b = 0; b < count; b++) {
        if (lengths[b] < 0 || lengths[b] > INT32_MAX - rows)
            return gma_fail(GMA_ERR_INVALID_ARGUMENT, "sequence %lld has %lld tokens; packed sequences together have 0 to %d",
                            (long long)b, (long long)lengths[b], (int)INT32_MAX);
        rows += lengths[b];
        longest = lengths[b] > longest ? lengths[b] : longest;
        equal &= lengths[b] == lengths[0];
    }
    if (!rows)
        return gma_fail(GMA_ERR_INVALID_ARGUMENT, "packed sequences have no token");
    if (equal)
        return shape_stack(s, count, longest);
    int32_t *room = realloc(s->cu_room, (size_t)(count + 1) * sizeof *room);
    if (!room)
        return gma_fail(GMA_ERR_OUT_OF_MEMORY, "no memory for %lld sequences", (long long)count);
    s->cu = s->cu_room = room;
    room[0] = 0;
    for (int64_t b = 0; b < count; b++)
        room[b + 1] = room[b] + (int32_t)lengths[b];
    s->B = count;
    s->T = longest;
    s->R = rows;
    return fit_stack(s);
}
