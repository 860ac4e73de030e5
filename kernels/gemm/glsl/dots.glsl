// Products of whole numbers of 8 bits, four in a word, by the device's own dot product: see VK_KHR_shader_integer_dot_product.

#extension GL_EXT_integer_dot_product : require

// The sum of the products of four codes of A with four of B.
int dotted(uint of_a, uint of_b) {
    if (A_TYPE == I8) {
        return B_TYPE == I8 ? dotPacked4x8EXT(int(of_a), int(of_b)) : dotPacked4x8EXT(int(of_a), of_b);
    }
    return B_TYPE == I8 ? dotPacked4x8EXT(of_a, int(of_b)) : int(dotPacked4x8EXT(of_a, of_b));
}
